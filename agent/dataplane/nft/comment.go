package nft

// userDataComment is the type of a comment in the user data that the program nft shows, and
// maxComment the length at which it cuts one off.
const (
	userDataComment = 0
	maxComment      = 127
)

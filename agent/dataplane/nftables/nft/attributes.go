package nft

// Attributes and flags of the kernel's nf_tables.h that golang.org/x/sys/unix lacks.
const (
	attrTableUserData  = 6
	attrChainUserData  = 12
	attrSetDescConcat  = 2
	attrSetFieldLength = 1
	attrElementKeyEnd  = 10

	setConcat = 0x80

	verdictDrop   = 0
	verdictAccept = 1

	tableOwner   = 0x2
	tablePersist = 0x4
)

// userDataComment is the type of a comment in the user data that the program nft shows, and
// maxComment the length at which it cuts one off.
const (
	userDataComment = 0
	maxComment      = 127
)

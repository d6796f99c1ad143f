package nft

// Type is the type of a part of a key, as the program nft knows it: it shows elements by it.
type Type struct {
	code   uint32
	length uint32 // bytes
}

// Types of parts of keys.
var (
	IPv4Address = Type{7, 4}
	IPv6Address = Type{8, 16}
	Protocol    = Type{12, 1} // of the transport layer, such as unix.IPPROTO_TCP
	Port        = Type{13, 2} // in network byte order
	Number      = Type{19, 4} // in the byte order of the host; nft shows it as a mark
)

// typeBits are how many bits of the code of a concatenation each of its parts takes.
const typeBits = 6

// concatenated is the code and the length of types one after the other, each aligned to a register
// of 32 bits.
func concatenated(types []Type) (code, length uint32) {
	if len(types) == 1 {
		return types[0].code, types[0].length
	}
	for _, t := range types {
		code = code<<typeBits | t.code
		length += (t.length + 3) &^ 3
	}
	return code, length
}

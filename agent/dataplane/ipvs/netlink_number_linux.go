package ipvs

import (
	"sync"
	_ "unsafe" // for go:linkname
)

// libraryNumber is the number of IPVS, as the kernel has given it when it loaded
// the module, by which the library asks the kernel. The library looks it up once in
// the life of the process and has no way to be told another one, and a module that
// is loaded again has another one. Should the library come to keep it elsewhere,
// this would be a variable of our own, and the agent would say that it must be
// restarted.
//
//go:linkname libraryNumber github.com/moby/ipvs.ipvsFamily
var libraryNumber int

// numberMu guards libraryNumber, which the library reads with each request and
// writes with the first handle: both families share it.
var numberMu sync.RWMutex

// Command crdcompat compares CRDs with those of the last release, and names every
// change that could invalidate a stored object or break a working program:
//
//	crdcompat RELEASED NOW
//
// Both are directories with one CRD a file. To accept a change, add the sentence that
// reports it to RELEASED/accepted.txt.
package main

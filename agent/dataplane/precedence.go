package dataplane

import (
	"cmp"
	"time"
)

// Precedence decides which of several Services has what all of them ask for, where neither
// has it as its cluster IP or, at an address of a Node, as its node port.
type Precedence struct {
	// Retained: the Service's object has vanished; its rules are held.
	Retained bool
	// Created is when the Service was created; zero: not known.
	Created time.Time
}

// Compare puts the better claim first: a live Service's before a held one's, then
// the older Service's. One that does not say when it was created is the youngest.
func (p Precedence) Compare(o Precedence) int {
	if p.Retained != o.Retained {
		return last(p.Retained)
	}
	if p.Created.IsZero() != o.Created.IsZero() {
		return last(p.Created.IsZero())
	}
	return p.Created.Compare(o.Created)
}

// last is how one of two compares that comes last, or first.
func last(is bool) int {
	if is {
		return 1
	}
	return -1
}

// ComparePrecedence puts the Service first that has what both ask for: the one of
// better Precedence, then of the lower name.
func (s *Service) ComparePrecedence(o *Service) int {
	return cmp.Or(s.Precedence.Compare(o.Precedence), s.Name.Compare(o.Name))
}

package desired

// Served reports whether a complete set that the API has shown since the start
// has been applied, or compared.
func (s *Store) Served() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shownServed
}

// noteServed notes that a batch has been applied, or compared. The caller holds mu.
func (s *Store) noteServed(b *Batch) {
	if b.shown && s.refusal == nil && s.inOrder() {
		s.shownServed = true
	}
}

// inOrder reports whether no family that is needed has failed, or has not been
// tried. The caller holds mu.
func (s *Store) inOrder() bool {
	for family, f := range s.families {
		if !s.settled(family) || f.err != nil && !s.spared(family) {
			return false
		}
	}
	return true
}

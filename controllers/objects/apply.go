package objects

import (
	"encoding/json"
	"fmt"
	"hash/fnv"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// FieldOwner is who applies what, as managedFields show it.
const FieldOwner = client.FieldOwner("nodeproxy-controller")

// Written tells whether something has changed since the last write of an object:
// what is wanted, or what somebody else has made of it. What it lacks after a
// restart costs a write that changes nothing.
type Written struct {
	Desired uint64
	Stored  uint64
}

// Fingerprint is a hash of what something is in JSON.
func Fingerprint(of any) (uint64, error) {
	hash, _, err := Measure(of)
	return hash, err
}

// Measure returns a hash of what something is in JSON, and how many bytes that takes.
func Measure(of any) (hash uint64, bytes int, err error) {
	text, err := json.Marshal(of)
	if err != nil {
		return 0, 0, fmt.Errorf("encode %T: %w", of, err)
	}
	h := fnv.New64a()
	_, _ = h.Write(text) // a hash never returns an error
	return h.Sum64(), len(text), nil
}

// Package nodealerts writes an event about a Node when its proxy fails or recovers, where `kubectl
// describe node` shows it.
package nodealerts

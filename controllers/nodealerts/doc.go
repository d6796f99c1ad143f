// Package nodealerts writes an event about a Node when its proxy fails or recovers, or runs another mode,
// where `kubectl describe node` shows it.
package nodealerts

// Package drift knows what other programs have changed of the rules that the agent
// wrote, and decides when that is looked at and repaired: the first times at once,
// then with growing pauses, so that two programs do not fight without end. It
// also knows what the status reports of it (Facts, the condition Drifted).
package drift

// Package drift records which of the agent's rules other programs have modified, and decides
// when these are compared and repaired: the first time at once, then with growing pauses, so that
// two programs do not fight forever. It also provides what the status reports of it.
package drift

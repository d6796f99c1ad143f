// Package simulated rolls out changes of settings to fifty simulated nodes: a real API
// server, the real controller, and agents that only report, some slowly, some failures,
// some never. Writes are recorded from watches and compared with what rollouts promise.
//
// SIMULATED_SERVICES=2000 is the number of Services that a policy changes, SIMULATED_STEPS
// the number of random events, and SIMULATED_SEED repeats them.
//
//   - suite_test.go, world_test.go, controller_test.go, agents_test.go: API server, nodes, controllers, agents
//   - rollout_test.go, churn_test.go, services_test.go, stopped_test.go: the tests; chance_test.go: random events
//   - history_test.go, invariants_test.go: what is recorded, and what must hold of it; describe_test.go, record_test.go:
//     goldens and recorded states
//   - agents_self_test.go, invariants_self_test.go: tests of these tests
package simulated

// Package controllers is the central half of nodeproxy: reconcilers that watch
// Services, EndpointSlices, Nodes, NodeProxy and policies, and write ServiceProxyRules,
// NodeProxyRules and statuses. A restart loses nothing: what reconcilers remember only paces
// writes and avoids duplicate events. This package only assembles them:
//
//   - setup.go: SetupWithManager, what a new term as the leader resets, and what triggers reconcilers
//     although no object has changed
//   - cache.go: which objects are watched, and what of them is stored
//   - live.go: reads the objects for package preview
//
// Where to look:
//
//   - services: renders Services, releases those that have ended; addresses: watches service ranges; overrides: those of policies
//   - nodes: renders Nodes; rollouts, nodesettings: changes of their settings
//   - servicepolicies, summary: statuses of policies and of NodeProxy
//   - agents, apiservers, liveness, startuptaint: the agents; nodealerts: events about their failures
//   - removal, clusterobjects: removal of NodeProxy; admission policies
//   - formats, pacing, events, metrics, leader, objects, retry, reports, watches, text:
//     used by several of them
//   - rollout: budgets, and which node is next; render, policies, preview, admission, agentdeploy: pure functions; manifest: reads
//     manifests
package controllers

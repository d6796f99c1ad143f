// Package chart tests the Helm chart: it renders what kustomize makes of config, its schema
// denies unknown values, and Helm installs, upgrades and removes it on a real API server.
package chart

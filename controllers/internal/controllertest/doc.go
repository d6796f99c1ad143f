// Package controllertest holds what the unit tests of several controllers use.
package controllertest

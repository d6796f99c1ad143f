// Package controllertest has helpers of the unit tests of several controllers.
package controllertest

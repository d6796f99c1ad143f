// Package soak runs nodeproxy for a long time while Services and endpoints change. No
// connection may fail, and neither memory nor open files may grow.
package soak

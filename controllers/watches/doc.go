// Package watches holds the event predicates and handlers that several controllers share.
package watches

// Package watches has the event predicates and handlers that several controllers share.
package watches

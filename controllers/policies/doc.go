// Package policies decides which policy sets which field. Field by field the policy
// with the highest priority wins, of equal ones that with the lower name, never the
// older: the same objects give the same result in every cluster. It is pure.
package policies

package v1alpha1

// IPVSSchedulers returns Linux's IPVS schedulers, by the kernel's names.
func IPVSSchedulers() []string {
	return []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh", "twos"}
}

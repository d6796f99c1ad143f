/*
 * Processors with AMX have more registers than User-mode Linux 6.1 saves, and the kernel only takes all of
 * them at once (EFAULT). A program must ask before it may use AMX, and none in User-mode Linux can, so
 * those registers are always in their initial state: this library adds them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

/* XSTATE_BV, in the header of an XSAVE area, has a bit for each component that is not in its initial state. */
enum { xstate_bv = 512 };
static const uint64_t amx = 3 << 17;

long ptrace(enum __ptrace_request request, ...)
{
	static long (*next)(enum __ptrace_request, ...);
	static char all[1 << 16]; /* the kernel's stacks are small; it never calls this concurrently */
	va_list args;

	va_start(args, request);
	pid_t pid = va_arg(args, pid_t);
	void *addr = va_arg(args, void *);
	struct iovec *given = va_arg(args, void *);
	va_end(args);
	if (!next)
		next = dlsym(RTLD_NEXT, "ptrace");
	long result = next(request, pid, addr, given);
	if (result == 0 || errno != EFAULT || request != PTRACE_SETREGSET || (uintptr_t)addr != NT_X86_XSTATE)
		return result;

	struct iovec whole = { all, sizeof all };
	if (next(PTRACE_GETREGSET, pid, addr, &whole) < 0)
		return -1;
	if (given->iov_len < xstate_bv + sizeof amx || given->iov_len > whole.iov_len) {
		errno = EFAULT;
		return -1;
	}
	memcpy(all, given->iov_base, given->iov_len);
	uint64_t present;
	memcpy(&present, all + xstate_bv, sizeof present);
	present &= ~amx;
	memcpy(all + xstate_bv, &present, sizeof present);
	return next(request, pid, addr, &whole);
}

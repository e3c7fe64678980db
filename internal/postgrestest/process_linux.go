package postgrestest

import "syscall"

// endWithUs has a process end where the test ends without ending it, as when it has run
// for too long.
func endWithUs(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }

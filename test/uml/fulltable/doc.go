// Package fulltable fills the connection tracking table of a machine with an agent. It
// shows that open connections continue, and that the agent continues and reports the
// problem and its end.
package fulltable

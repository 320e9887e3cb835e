//! The HTTP server over real sockets. Only the snapshotter is a fake, so that a test can make it slow, busy or broken.

mod abuse;
mod forwarding;
mod responses;
mod support;
mod tls;

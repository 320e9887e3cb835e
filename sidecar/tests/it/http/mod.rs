//! The HTTP server over real sockets. Only the snapshotter behind it is a stand-in, so that it can be slow, busy or
//! broken when a test says so.

mod abuse;
mod answers;
mod delegation;
mod encryption;
mod support;

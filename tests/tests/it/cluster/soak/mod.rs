//! Tests of `make soak`: the claims of `make test` at more moments, with more members, or for longer. With access to the
//! node: `node::soak`.

mod controller_kills;
mod recoveries;
mod variants;

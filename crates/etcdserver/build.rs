//! Generates the messages and services from `proto/`.

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=proto");
    tonic_prost_build::configure()
        .build_client(false)
        .bytes(".")
        .compile_protos(&["proto/rpc.proto"], &["proto"])
}

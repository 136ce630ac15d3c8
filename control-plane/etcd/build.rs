//! Compiles the protos with protox, a protobuf compiler in Rust, so that no build needs protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/etcd.proto"], ["proto"])?;
    // Keys and values are shared, not copied.
    tonic_prost_build::configure().build_client(true).build_server(true).bytes(".").compile_fds(descriptors)?;
    Ok(())
}

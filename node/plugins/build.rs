//! Compiles the interfaces in `proto/` with protox, a protobuf compiler in Rust, so that no build needs protoc.

const FILES: [&str; 7] = [
    "registration.proto",
    "csi.proto",
    "device_plugin.proto",
    "dynamic_resources.proto",
    "dynamic_resources_beta.proto",
    "dynamic_resources_health.proto",
    "pod_resources.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    tonic_prost_build::configure().build_client(true).build_server(true).compile_fds(descriptors)?;
    Ok(())
}

//! The runtime reconciles its pod network with the existing sandboxes at every start.

// A test fails by panicking.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use corten_cri::{RuntimeServiceClient, v1};
use corten_runtime::{Config, PodNetwork, PodNetworkRequest, PodNetworkResult};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// A network that records its calls.
#[derive(Default)]
struct Recorder {
    live: Mutex<Vec<BTreeSet<String>>>,
}

#[tonic::async_trait]
impl PodNetwork for Recorder {
    async fn setup(&self, _: PodNetworkRequest) -> Result<PodNetworkResult, String> {
        Ok(PodNetworkResult { ips: vec![[10, 0, 0, 1].into()] })
    }

    async fn teardown(&self, _: PodNetworkRequest) -> Result<(), String> {
        Ok(())
    }

    async fn reconcile(&self, live: BTreeSet<String>) -> Result<(), String> {
        self.live.lock().unwrap().push(live);
        Ok(())
    }
}

async fn connect(config: &Config) -> RuntimeServiceClient<Channel> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(300);
    loop {
        if let Ok(channel) = corten_cri::connect(&config.socket.display().to_string()).await {
            return RuntimeServiceClient::new(channel);
        }
        assert!(tokio::time::Instant::now() < deadline, "the runtime does not answer");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn sandbox() -> v1::PodSandboxConfig {
    let own = v1::NamespaceMode::Container as i32;
    let options = v1::NamespaceOption { pid: own, ..v1::NamespaceOption::default() };
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata { name: "p".into(), ..v1::PodSandboxMetadata::default() }),
        linux: Some(v1::LinuxPodSandboxConfig {
            security_context: Some(v1::LinuxSandboxSecurityContext {
                namespace_options: Some(options),
                ..v1::LinuxSandboxSecurityContext::default()
            }),
            ..v1::LinuxPodSandboxConfig::default()
        }),
        ..v1::PodSandboxConfig::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_network_is_reconciled_with_the_live_sandboxes() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: making sandboxes needs root");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let config = Config {
        state_dir: root.path().join("state"),
        run_dir: root.path().join("run"),
        images_dir: root.path().join("images"),
        socket: root.path().join("cri.sock"),
        self_exe: env!("CARGO_BIN_EXE_corten-runtime").into(),
        ..Config::default()
    };
    let network = Arc::new(Recorder::default());
    let mut made = BTreeSet::new();
    for _ in 0..2 {
        let shutdown = CancellationToken::new();
        let served = tokio::spawn(corten_runtime::serve(config.clone(), network.clone(), shutdown.clone()));
        let mut runtime = connect(&config).await;
        let request = v1::RunPodSandboxRequest { config: Some(sandbox()), runtime_handler: String::new() };
        made.insert(runtime.run_pod_sandbox(request).await.unwrap().into_inner().pod_sandbox_id);
        drop(runtime);
        shutdown.cancel();
        served.await.unwrap().unwrap();
    }
    corten_runtime::purge(&config, network.clone()).await.unwrap();
    let reconciled = network.live.lock().unwrap().clone();
    assert_eq!(reconciled[0], BTreeSet::new(), "nothing was there at first");
    assert_eq!(reconciled[1].len(), 1);
    assert!(reconciled[1].is_subset(&made));
}

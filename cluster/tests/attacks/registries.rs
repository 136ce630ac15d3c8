//! Registries that answer a pull with data made to harm the puller.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use testkit::cluster::{Cluster, IMAGE};
use testkit::{tools, wait};

use super::images::{MEMORY_BOUND, assert_healthy, config, digest, entry, gzip, run_measured, server_peak};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");

/// The largest number of bytes that an endless answer really sends: a puller without a limit must not exhaust the
/// machine.
const ENDLESS: usize = 1 << 30;
/// The memory that a pull may add to the server's.
const PULL_BOUND: u64 = 96 << 20;

/// The answer of a registry.
enum Answer {
    /// This document.
    Content(Vec<u8>),
    /// A document that does not end.
    Endless,
    /// This status, with these headers.
    Status(u16, String),
    /// The start of a document, and then nothing.
    Stall,
}

/// A request that a registry received.
#[derive(Debug, Clone)]
struct Received {
    path: String,
    authorization: Option<String>,
}

/// A plain HTTP server in the machine's network.
struct Registry {
    listener: TcpListener,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Registry {
    fn start(cluster: &Cluster, port: u16, answer: impl Fn(&Received) -> Answer + Send + Sync + 'static) -> Self {
        let listener = cluster.machine.in_network(|| TcpListener::bind(("127.0.0.1", port)).expect("a free port"));
        let accepting = listener.try_clone().expect("a descriptor");
        let received = Arc::new(Mutex::new(Vec::new()));
        let noted = received.clone();
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for connection in accepting.incoming() {
                let Ok(connection) = connection else { return };
                let noted = noted.clone();
                let answer = answer.clone();
                std::thread::spawn(move || {
                    // A puller that stops early closes the connection, which is no failure of the test.
                    let _ = serve(connection, &noted, &*answer);
                });
            }
        });
        Self { listener, received }
    }

    fn received(&self) -> Vec<Received> {
        self.received.lock().expect("the list").clone()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // Ends the thread that accepts.
        let _ = rustix::net::shutdown(self.listener.as_fd(), rustix::net::Shutdown::Both);
    }
}

fn serve(
    mut connection: TcpStream,
    noted: &Mutex<Vec<Received>>,
    answer: &dyn Fn(&Received) -> Answer,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        connection.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let header = |line: &str| {
        line.split_once(": ")
            .filter(|(name, _)| name.eq_ignore_ascii_case("authorization"))
            .map(|(_, value)| value.to_owned())
    };
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let request = Received { path, authorization: head.lines().find_map(header) };
    noted.lock().expect("the list").push(request.clone());
    match answer(&request) {
        Answer::Content(bytes) => {
            write!(connection, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", bytes.len())?;
            connection.write_all(&bytes)
        }
        Answer::Endless => {
            write!(connection, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
            let spaces = vec![b' '; 1 << 16];
            (0..ENDLESS / spaces.len()).try_for_each(|_| connection.write_all(&spaces))
        }
        Answer::Status(code, headers) => {
            write!(connection, "HTTP/1.1 {code} Status\r\nConnection: close\r\nContent-Length: 0\r\n{headers}\r\n")
        }
        Answer::Stall => {
            write!(connection, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1000000\r\n\r\n")?;
            connection.write_all(b"the start")?;
            // The connection stays open until the puller closes it.
            connection.read(&mut [0]).map(|_| ())
        }
    }
}

fn manifest(config: &str, layer: &str, size: usize) -> Vec<u8> {
    serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(config.as_bytes()), "size": config.len()},
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": layer, "size": size}],
    })
    .to_string()
    .into_bytes()
}

/// An image of one layer that a registry serves as `/v2/evil/NAME`, and the message of its refusal.
struct Served {
    name: &'static str,
    refusal: &'static str,
    manifest: Vec<u8>,
    config: String,
    blob: Vec<u8>,
}

impl Served {
    fn answer(&self, path: &str) -> Answer {
        let content = match path {
            path if path.contains("/manifests/") => self.manifest.clone(),
            path if path.ends_with(&digest(self.config.as_bytes())) => self.config.clone().into_bytes(),
            _ => self.blob.clone(),
        };
        Answer::Content(content)
    }
}

/// Returns a valid image, to be forged.
fn honest() -> Served {
    let mut layer = entry(tar::EntryType::Regular, "file", "", b"content");
    layer.resize(layer.len() + 1024, 0);
    let blob = gzip(&layer);
    let config = config(&[&digest(&layer)]);
    Served { name: "honest", refusal: "", manifest: manifest(&config, &digest(&blob), blob.len()), config, blob }
}

/// Returns an image whose configuration names this layer.
fn claiming(name: &'static str, refusal: &'static str, diff_id: &str) -> Served {
    let honest = honest();
    let config = config(&[diff_id]);
    let manifest = manifest(&config, &digest(&honest.blob), honest.blob.len());
    Served { name, refusal, manifest, config, blob: honest.blob }
}

/// Returns an image whose manifest describes the layer by this digest and size.
fn described(name: &'static str, refusal: &'static str, layer: &str, size: usize) -> Served {
    let honest = honest();
    Served { name, refusal, manifest: manifest(&honest.config, layer, size), ..honest }
}

fn images(private: &str) -> Vec<Served> {
    let honest = honest();
    let size = honest.blob.len();
    let blob = digest(&honest.blob);
    let longer = [honest.blob.clone(), vec![0; 4096]].concat();
    vec![
        claiming("path", "invalid digest", "/proc/1/root"),
        claiming("stolen", "has the content of", private),
        described("named", "invalid digest", "../../../etc/shadow", size),
        described("wrong", "has the content of", &digest(b"another"), size),
        described("huge", "larger than a layer may be", &blob, usize::MAX / 2),
        Served { name: "longer", refusal: "is longer than the", blob: longer, ..honest },
    ]
}

#[test]
fn hostile_registries_get_nothing_and_the_cluster_goes_on() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::machine(CORTEN);
    let file = cluster.scratch().join("registries.yaml");
    std::fs::write(&file, "registries:\n- {host: '127.0.0.1:5000', plainHTTP: true}\n").expect("a file");
    let file = file.to_string_lossy().into_owned();
    cluster.start(&["--registry-config", &file]);
    let archive = testkit::image::busybox_archive(cluster.scratch(), IMAGE);
    cluster.corten(&["image", "import", &archive.to_string_lossy()]);
    let layers = cluster.data_dir().join("images/layers");
    let private = std::fs::read_dir(layers).expect("layers").flatten().next().expect("the test image's layer");
    let private = format!("sha256:{}", private.file_name().to_string_lossy());

    let elsewhere = Registry::start(&cluster, 5001, |_| Answer::Status(404, String::new()));
    let images = images(&private);
    let expected: Vec<(&str, &str)> = images.iter().map(|image| (image.name, image.refusal)).collect();
    let registry = Registry::start(&cluster, 5000, move |request| {
        let name = request.path.split('/').nth(3).unwrap_or_default();
        let ask = |challenge: &str| Answer::Status(401, format!("WWW-Authenticate: {challenge}\r\n"));
        match name {
            "endless" => Answer::Endless,
            "token" if request.authorization.is_none() => {
                ask("Bearer realm=\"http://127.0.0.1:5000/v2/evil/endless/token\"")
            }
            "header" => ask("Bearer realm=\"http://127.0.0.1:5000/v2/evil/newline/token\""),
            "newline" => Answer::Content(b"{\"token\": \"a\\r\\nInjected: b\"}".to_vec()),
            "realm" => ask("Bearer realm=\"file:///etc/shadow\""),
            "basic" if request.authorization.is_none() => ask("Basic realm=\"x\""),
            "basic" => Answer::Status(307, "Location: http://127.0.0.1:5001/stolen\r\n".into()),
            "loop" => Answer::Status(307, format!("Location: {}\r\n", request.path)),
            "file" => Answer::Status(307, "Location: file:///etc/shadow\r\n".into()),
            "stall" => Answer::Stall,
            name => match images.iter().find(|image| image.name == name) {
                Some(image) => image.answer(&request.path),
                None => Answer::Status(404, String::new()),
            },
        }
    });

    let pull = |name: &str, flags: &[&str]| {
        let image = format!("127.0.0.1:5000/evil/{name}:1");
        let arguments = [&["image", "pull", "--plain-http", image.as_str()], flags].concat();
        run_measured(cluster.corten_command(&arguments))
    };
    let refused = [
        ("endless", "sent more than"),
        ("token", "sent more than"),
        ("header", "gave no token"),
        ("realm", "cannot be used"),
        ("loop", "too many redirects"),
        ("file", "answered 307"),
        ("basic", "404"),
    ];
    for (name, words) in refused.into_iter().chain(expected) {
        let ended = pull(name, &["--user", "user:word"]);
        assert!(!ended.success && ended.stderr.contains(words), "{name}: {}", ended.stderr);
        assert!(ended.peak < MEMORY_BOUND, "{name}: {} bytes of memory", ended.peak);
    }
    let shown: Vec<Received> = elsewhere.received();
    assert!(!shown.is_empty(), "the redirect was followed");
    assert!(shown.iter().all(|request| request.authorization.is_none()), "and saw a password: {shown:?}");

    // The same by pods: the kubelet's pulls run inside the server.
    let before = server_peak(&cluster);
    for name in ["endless", "token", "path", "stolen"] {
        let image = format!("127.0.0.1:5000/evil/{name}:1");
        cluster.kubectl(&["run", name, "--image", &image, "--restart=Never"]);
    }
    for name in ["endless", "token", "path", "stolen"] {
        let waiting = "jsonpath={.status.containerStatuses[0].state.waiting.reason}";
        cluster.kubectl_until(&["get", "pod", name, "-o", waiting], |reason| {
            reason == "ErrImagePull" || reason == "ImagePullBackOff"
        });
    }
    let after = server_peak(&cluster);
    assert!(after < before + PULL_BOUND, "the pulls took {} bytes", after - before);
    assert_healthy(&cluster, "after");
    let images = cluster.corten(&["image", "ls"]);
    assert!(!images.contains("evil"), "{images}");

    // A pull that waits for its registry ends with the cluster.
    let mut pulling = cluster.corten_command(&["image", "pull", "--plain-http", "127.0.0.1:5000/evil/stall:1"]);
    let pulling = pulling.stderr(std::process::Stdio::piped()).spawn().expect("corten runs");
    wait::until("the pull's request", wait::BOUND, || {
        let seen = registry.received().iter().any(|request| request.path.contains("/evil/stall/"));
        if seen { Ok(()) } else { Err("nothing was asked".into()) }
    });
    cluster.corten(&["down", "--purge"]);
    let ended = pulling.wait_with_output().expect("the pull ends");
    let words = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success() && words.contains("was removed meanwhile"), "{words}");
    assert!(!cluster.data_dir().exists(), "the purged directory is not made again");
}

//! A repository in a bucket of moto's S3 server.
//!
//! The test needs `moto[server,s3]` and boto3: `MOTO_SERVER` names the program `moto_server` of their Python environment.
//! Without it the test says so and passes.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

use std::fs::File;
use std::io::{Read, Seek};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corten_storage_backup::s3::{Bucket, Config, Credentials};
use corten_storage_backup::{CHUNK_BYTES, Error, Header, Owner, Repository, Secret};

/// A server that ends with the test.
struct Moto {
    process: Child,
    endpoint: String,
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Moto {
    /// Starts a server with the bucket `backups`.
    fn start() -> Option<Moto> {
        let Some(program) = std::env::var_os("MOTO_SERVER").map(PathBuf::from) else {
            eprintln!("skipped: MOTO_SERVER names no moto_server");
            return None;
        };
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let process = Command::new(&program)
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let moto = Moto { process, endpoint: format!("http://127.0.0.1:{port}") };
        let deadline = Instant::now() + Duration::from_secs(120);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "moto_server does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        let script = format!(
            "import boto3\nboto3.client('s3', endpoint_url='{}', region_name='us-east-1', aws_access_key_id='A', \
             aws_secret_access_key='S').create_bucket(Bucket='backups')",
            moto.endpoint
        );
        let made = Command::new(program.with_file_name("python")).args(["-c", &script]).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Some(moto)
    }

    async fn open(&self, bucket: &str) -> Result<Repository, Error> {
        let config = Config {
            endpoint: self.endpoint.clone(),
            region: "us-east-1".to_owned(),
            bucket: bucket.to_owned(),
            prefix: "volumes".to_owned(),
            credentials: Credentials { access_key: "A".into(), secret_key: "S".into(), session_token: None },
            roots: String::new(),
        };
        let secret = Secret::key_file(vec![1; 32]).unwrap();
        let objects = Arc::new(Bucket::new(config).unwrap());
        Repository::open(objects, &secret, Arc::new(jiff::Timestamp::now), Owner::default()).await
    }
}

fn image(chunks: u64, begin: u8) -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(chunks * CHUNK_BYTES).unwrap();
    for index in 0..chunks {
        file.write_all_at(&[begin + index as u8; 100], index * CHUNK_BYTES).unwrap();
    }
    file
}

fn content(mut file: &File) -> Vec<u8> {
    let mut content = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut content).unwrap();
    content
}

#[tokio::test]
async fn a_bucket_is_a_repository() {
    let Some(moto) = Moto::start() else { return };
    let refused = moto.open("none").await.err().unwrap();
    assert!(refused.to_string().contains("NoSuchBucket"), "{refused}");
    let repository = moto.open("backups").await.unwrap();
    let header = Header { bytes: 4 * CHUNK_BYTES, ..Header::default() };
    repository.back_up("a", header.clone(), image(4, 1), &[]).await.unwrap();
    let again = moto.open("backups").await.unwrap();
    let second = again.back_up("b", header.clone(), image(4, 2), &["a".to_owned()]).await.unwrap();
    assert!(second.sent > 0 && second.sent < CHUNK_BYTES, "{second:?}");
    assert_eq!(again.list().await.unwrap(), ["a", "b"]);
    again.delete("a").await.unwrap();
    let pruned = again.prune().await.unwrap();
    assert_eq!((pruned.deleted, pruned.kept), (1, 4));
    assert_eq!(again.verify().await.unwrap().problems, Vec::<String>::new());
    let target = tempfile::tempfile().unwrap();
    target.set_len(header.bytes).unwrap();
    assert_eq!(again.restore("b", target.try_clone().unwrap()).await.unwrap(), header);
    assert!(content(&target) == content(&image(4, 2)));
}

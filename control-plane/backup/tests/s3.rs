//! Backups in a bucket of moto's S3 server, judged by boto3.
//!
//! The test needs `moto[server,s3]` and boto3: `MOTO_SERVER` names the program `moto_server` of their Python environment.
//! Without it the test says so and passes.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

use std::fs;
use std::io::{Seek, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use corten_backup::s3::{Bucket, Config, Credentials};
use corten_backup::{Header, Manifest, Secret, Target, archive, file};
use corten_store::snapshot::{self, Contents, Member};

/// A server that ends with the test.
struct Moto {
    process: Child,
    python: PathBuf,
    endpoint: String,
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Moto {
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
        let python = program.with_file_name("python");
        let moto = Moto { process, python, endpoint: format!("http://127.0.0.1:{port}") };
        let deadline = Instant::now() + Duration::from_secs(120);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "moto_server does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(moto)
    }

    /// Runs lines of Python with a client of boto3 named `s3`, and returns what they print.
    fn boto3(&self, script: &str) -> String {
        let head = format!(
            "import boto3, hashlib\ns3 = boto3.client('s3', endpoint_url='{}', region_name='eu-central-1', \
             aws_access_key_id='A', aws_secret_access_key='S')\n",
            self.endpoint
        );
        let output = Command::new(&self.python).args(["-c", &(head + script)]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn bucket(&self, name: &str) -> Result<Bucket, corten_backup::Error> {
        Bucket::new(Config {
            endpoint: self.endpoint.clone(),
            region: "eu-central-1".to_owned(),
            bucket: name.to_owned(),
            prefix: "/daily/".to_owned(),
            credentials: Credentials { access_key: "A".into(), secret_key: "S".into(), session_token: None },
            roots: String::new(),
        })
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn sha256(path: &Path) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, &fs::read(path).unwrap());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn files_of_every_size_arrive_whole_and_are_listed_and_deleted() {
    let Some(moto) = Moto::start() else { return };
    moto.boto3("s3.create_bucket(Bucket='backups', CreateBucketConfiguration={'LocationConstraint': 'eu-central-1'})");
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let bucket = moto.bucket("backups").unwrap();
        for (name, length) in [("empty", 0), ("small & ü+.corten", 1000), ("large", 20 << 20)] {
            let path = folder.path().join("file");
            let bytes: Vec<u8> = (0..length).map(|byte: usize| (byte % 251) as u8).collect();
            fs::write(&path, bytes).unwrap();
            bucket.upload(name, fs::File::open(&path).unwrap(), length as u64).await.unwrap();
            let theirs = moto.boto3(&format!(
                "print(hashlib.sha256(s3.get_object(Bucket='backups', Key='daily/{name}')['Body'].read()).hexdigest())"
            ));
            assert_eq!(theirs, sha256(&path), "{name}");
            let back = folder.path().join("back");
            let mut file = tokio::fs::File::create(&back).await.unwrap();
            assert_eq!(bucket.download(name, &mut file).await.unwrap(), length as u64);
            assert_eq!(sha256(&back), sha256(&path), "{name}");
        }
        // Three parts, of which none is left behind.
        let parts = "print(s3.head_object(Bucket='backups', Key='daily/large')['ETag'], len(s3.list_multipart_uploads(Bucket='backups').get('Uploads', [])))";
        let parts = moto.boto3(parts);
        assert!(parts.ends_with("-3\" 0"), "{parts}");
        // More objects than one answer lists, and one beside the prefix.
        moto.boto3("[s3.put_object(Bucket='backups', Key=f'daily/{n:04}', Body=b'x') for n in range(1005)]");
        moto.boto3("s3.put_object(Bucket='backups', Key='other', Body=b'x')");
        let listed = bucket.list().await.unwrap();
        assert_eq!(listed.len(), 1008);
        let small = listed.iter().find(|object| object.name.starts_with("small")).unwrap();
        assert_eq!((small.name.as_str(), small.bytes), ("small & ü+.corten", 1000));
        bucket.delete("large").await.unwrap();
        bucket.delete("large").await.unwrap();
        assert!(bucket.list().await.unwrap().iter().all(|object| object.name != "large"));
        let refused = moto.bucket("none").unwrap().list().await.unwrap_err().to_string();
        assert!(refused.contains("NoSuchBucket"), "{refused}");
    });
}

#[test]
fn backups_go_to_a_bucket_and_only_the_newest_stay() {
    let Some(moto) = Moto::start() else { return };
    moto.boto3("s3.create_bucket(Bucket='backups', CreateBucketConfiguration={'LocationConstraint': 'eu-central-1'})");
    let folder = tempfile::tempdir().unwrap();
    let secret = Secret::key_file(vec![1; 32]).unwrap();
    runtime().block_on(async {
        let bucket = moto.bucket("backups").unwrap();
        let target = Target::Bucket { bucket: Box::new(bucket), scratch: folder.path().to_owned() };
        for second in 0..4 {
            let time = jiff::Timestamp::from_second(1_700_000_000 + second).unwrap();
            let name = corten_backup::target::name("0123456789", time);
            target.write(&name, contents(time, &secret), &secret).await.unwrap();
            target.prune("0123456789", 2).await.unwrap();
        }
        let names = target.names().await.unwrap();
        assert_eq!(
            names,
            ["corten-01234567-20231114T221322Z.corten", "corten-01234567-20231114T221323Z.corten"].map(str::to_owned)
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing stays in the local directory");
        let back = folder.path().join("back");
        let mut downloaded = tokio::fs::File::create(&back).await.unwrap();
        moto.bucket("backups").unwrap().download(&names[0], &mut downloaded).await.unwrap();
        assert_eq!(file::verify(&back, &secret, folder.path()).unwrap().revision, 3);
    });
}

fn contents(time: jiff::Timestamp, secret: &Secret) -> archive::Contents {
    let mut snapshot = tempfile::tempfile().unwrap();
    let member = Member { id: 1, name: "m".into(), peer_urls: vec![], client_urls: vec![], applied: 1 };
    let store = Contents { revision: 3, compacted: 3, base: vec![], history: vec![], leases: vec![] };
    let snapshot_bytes = snapshot::save(&store, &member, &snapshot).unwrap();
    snapshot.flush().unwrap();
    snapshot.rewind().unwrap();
    archive::Contents {
        header: Header::new(time, "1", "0123456789", secret).unwrap(),
        manifest: Manifest::default(),
        files: Default::default(),
        snapshot,
        snapshot_bytes,
    }
}

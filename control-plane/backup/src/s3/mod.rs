//! Backups in an S3 bucket, or in a store that speaks S3: signed requests over HTTP/1.1, large files in parts.
//!
//! Requests are signed by AWS Signature Version 4 ([`corten_outbound::sign`]) and name the bucket in their path, which every
//! implementation takes. Answers are small XML documents, read by [`corten_outbound::xml`]; a backup itself is
//! never held in memory as a whole. Each request has a deadline, and is tried again where that is harmless.

mod client;

use std::fs::File;
use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use corten_outbound::xml;
use http::Method;
use tokio::io::AsyncWriteExt;

use crate::Error;
use client::{Client, Failure, Request};

pub use corten_outbound::sign::Credentials;

/// The size of a part of a large file, and of the largest file that is sent by one request. The last part may be smaller.
const PART_BYTES: u64 = 8 << 20;
/// The most parts that S3 takes.
const MOST_PARTS: u64 = 10_000;
/// The most backups that are listed.
const MOST_LISTED: usize = 100_000;
const ATTEMPTS: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// The settings of a bucket.
#[derive(Clone, Debug)]
pub struct Config {
    /// The URL of the service, such as `https://s3.eu-central-1.amazonaws.com`.
    pub endpoint: String,
    pub region: String,
    pub bucket: String,
    /// The begin of all names, without slashes at its ends; may be empty.
    pub prefix: String,
    pub credentials: Credentials,
    /// The CAs that an `https` endpoint is verified by, in PEM.
    pub roots: String,
}

/// A bucket.
#[derive(Debug)]
pub struct Bucket {
    client: Client,
    prefix: String,
}

/// An object in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The name below the prefix.
    pub name: String,
    pub bytes: u64,
}

impl Bucket {
    pub fn new(config: Config) -> Result<Bucket, Error> {
        let prefix = config.prefix.trim_matches('/').to_owned();
        Ok(Bucket { client: Client::new(config)?, prefix })
    }

    /// Returns the key of a name.
    fn key(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_owned() } else { format!("{}/{name}", self.prefix) }
    }

    /// Uploads a file of `length` bytes under a name.
    pub async fn upload(&self, name: &str, mut file: File, length: u64) -> Result<(), Error> {
        let key = self.key(name);
        if length <= PART_BYTES {
            let body = read_part(&mut file, length)?;
            self.ask(&Request { method: Method::PUT, key: &key, query: &[], body }).await?;
            return Ok(());
        }
        let begun = Request { method: Method::POST, key: &key, query: &[("uploads", "")], body: Bytes::new() };
        let answer = self.ask(&begun).await?;
        let upload = xml::first(&answer, "UploadId");
        let upload = upload.ok_or_else(|| Error::Target("S3 gave no id for an upload in parts".to_owned()))?;
        let sent = self.upload_parts(&key, &upload, &mut file, length).await;
        if sent.is_err() {
            // The error is the reason; a bucket may also remove incomplete uploads by a rule of its own.
            let query = [("uploadId", upload.as_str())];
            let _ = self.ask(&Request { method: Method::DELETE, key: &key, query: &query, body: Bytes::new() }).await;
        }
        sent
    }

    async fn upload_parts(&self, key: &str, upload: &str, file: &mut File, length: u64) -> Result<(), Error> {
        let part_bytes = PART_BYTES.max(length.div_ceil(MOST_PARTS));
        let mut document = String::from("<CompleteMultipartUpload>");
        let mut left = length;
        let mut number = 1;
        while left > 0 {
            let body = read_part(file, part_bytes.min(left))?;
            left -= body.len() as u64;
            let text = number.to_string();
            let query = [("partNumber", text.as_str()), ("uploadId", upload)];
            let answer = self.send(&Request { method: Method::PUT, key, query: &query, body }).await?;
            let tag = answer.header("etag").ok_or_else(|| Error::Target("S3 gave no tag for a part".to_owned()))?;
            let tag = xml::escape(tag);
            document.push_str(&format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"));
            number += 1;
        }
        document.push_str("</CompleteMultipartUpload>");
        let query = [("uploadId", upload)];
        let answer = self.ask(&Request { method: Method::POST, key, query: &query, body: document.into() }).await?;
        // S3 may report a failure in an answer that is none by its status.
        match xml::first(&answer, "Code") {
            Some(code) => Err(Error::Target(format!("S3 refused to complete {key}: {code}"))),
            None => Ok(()),
        }
    }

    /// Lists the objects below the prefix, in order of their names.
    pub async fn list(&self) -> Result<Vec<Object>, Error> {
        self.list_below("", MOST_LISTED).await
    }

    /// Lists at most `most` objects whose names begin with `begin`, in order of their names.
    pub async fn list_below(&self, begin: &str, most: usize) -> Result<Vec<Object>, Error> {
        let below = if self.prefix.is_empty() { String::new() } else { format!("{}/", self.prefix) };
        let wanted = format!("{below}{begin}");
        let page = most.min(1000).to_string();
        let mut all = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let mut query = vec![("list-type", "2"), ("prefix", wanted.as_str()), ("max-keys", page.as_str())];
            if let Some(token) = &next {
                query.push(("continuation-token", token));
            }
            let answer = self.ask(&Request { method: Method::GET, key: "", query: &query, body: Bytes::new() }).await?;
            let answer = xml::parse(&answer).map_err(|reason| Error::Target(format!("an answer of S3: {reason}")))?;
            for object in answer.all("ListBucketResult/Contents") {
                let Some(name) = object.get("Key").strip_prefix(&below) else { continue };
                let bytes = object.get("Size").parse().unwrap_or(0);
                all.push(Object { name: name.to_owned(), bytes });
            }
            next = answer.find("NextContinuationToken").map(|token| token.text.clone());
            if next.is_none() || all.len() >= most {
                all.truncate(most);
                return Ok(all);
            }
        }
    }

    /// Downloads an object into a file; returns its length.
    pub async fn download(&self, name: &str, file: &mut tokio::fs::File) -> Result<u64, Error> {
        let key = self.key(name);
        let failed = |error: std::io::Error| Error::Target(format!("{name} cannot be written: {error}"));
        let mut answer = self.send(&Request { method: Method::GET, key: &key, query: &[], body: Bytes::new() }).await?;
        let mut length = 0;
        while let Some(part) = answer.next().await? {
            length += part.len() as u64;
            file.write_all(&part).await.map_err(failed)?;
        }
        file.sync_all().await.map_err(failed)?;
        Ok(length)
    }

    /// Writes a small object.
    pub async fn put_bytes(&self, name: &str, body: Bytes) -> Result<(), Error> {
        let key = self.key(name);
        self.ask(&Request { method: Method::PUT, key: &key, query: &[], body }).await.map(drop)
    }

    /// Reads an object of at most `most` bytes; none if it does not exist.
    pub async fn get_bytes(&self, name: &str, most: usize) -> Result<Option<Bytes>, Error> {
        let key = self.key(name);
        let request = Request { method: Method::GET, key: &key, query: &[], body: Bytes::new() };
        let Some(mut answer) = self.find(&request).await? else { return Ok(None) };
        let mut bytes = Vec::new();
        while let Some(part) = answer.next().await? {
            if bytes.len() + part.len() > most {
                return Err(Error::Target(format!("{name} has more than {most} bytes")));
            }
            bytes.extend_from_slice(&part);
        }
        Ok(Some(bytes.into()))
    }

    /// Reports whether an object exists.
    pub async fn has(&self, name: &str) -> Result<bool, Error> {
        let key = self.key(name);
        let request = Request { method: Method::HEAD, key: &key, query: &[], body: Bytes::new() };
        Ok(self.find(&request).await?.is_some())
    }

    /// Deletes an object; one that does not exist is no error.
    pub async fn delete(&self, name: &str) -> Result<(), Error> {
        let key = self.key(name);
        self.ask(&Request { method: Method::DELETE, key: &key, query: &[], body: Bytes::new() }).await.map(drop)
    }

    /// Sends a request, and returns the document of its answer.
    async fn ask(&self, request: &Request<'_>) -> Result<String, Error> {
        self.send(request).await?.text().await
    }

    /// Sends a request for an object, which must exist.
    async fn send(&self, request: &Request<'_>) -> Result<client::Answer, Error> {
        self.try_send(request).await.map_err(|failure| Error::Target(failure.reason))
    }

    /// Sends a request for an object; none if the object does not exist.
    async fn find(&self, request: &Request<'_>) -> Result<Option<client::Answer>, Error> {
        match self.try_send(request).await {
            Ok(answer) => Ok(Some(answer)),
            Err(failure) if failure.is_missing => Ok(None),
            Err(failure) => Err(Error::Target(failure.reason)),
        }
    }

    /// Sends a request; again after a failure that another attempt may not have. Every request here can be repeated.
    async fn try_send(&self, request: &Request<'_>) -> Result<client::Answer, Failure> {
        let mut pause = FIRST_PAUSE;
        let mut attempt = 1;
        loop {
            match self.client.send(request).await {
                Ok(answer) => return Ok(answer),
                Err(failure) if failure.is_transient && attempt < ATTEMPTS => {
                    tracing::debug!("a request to S3 is tried again: {}", failure.reason);
                }
                Err(failure) => return Err(failure),
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
            attempt += 1;
        }
    }
}

fn read_part(file: &mut File, length: u64) -> Result<Bytes, Error> {
    let mut part = Vec::new();
    let read = file.take(length).read_to_end(&mut part);
    read.map_err(|error| Error::Target(format!("the backup cannot be read: {error}")))?;
    if part.len() as u64 != length {
        return Err(Error::Target("the backup became shorter while it was sent".to_owned()));
    }
    Ok(part.into())
}

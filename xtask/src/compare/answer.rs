//! An answer of HTTP/1.1 as it came over a connection that ends with it.

use anyhow::{Context, Result, bail};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    /// Reads the bytes of a whole connection.
    pub fn parse(mut bytes: &[u8]) -> Result<Answer> {
        loop {
            let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").context("the answer has no head")?;
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let rest = &bytes[end + 4..];
            let mut lines = head.lines();
            let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse::<u16>().ok());
            let status = status.with_context(|| format!("{head:?} has no status"))?;
            if (100..200).contains(&status) && status != 101 {
                bytes = rest;
                continue;
            }
            let headers: Vec<(String, String)> = lines
                .filter_map(|line| line.split_once(':'))
                .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
                .collect();
            let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
            let body = if chunked { unchunk(rest)? } else { rest.to_vec() };
            return Ok(Answer { status, headers, body });
        }
    }

    /// The values of a header, sorted.
    pub fn header(&self, name: &str) -> Vec<&str> {
        let mut values: Vec<&str> =
            self.headers.iter().filter(|(given, _)| given == name).map(|(_, value)| value.as_str()).collect();
        values.sort_unstable();
        values
    }

    /// The body, if it is JSON.
    pub fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }
}

fn unchunk(mut bytes: &[u8]) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|window| window == b"\r\n").context("a chunk has no size")?;
        let line = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let size = usize::from_str_radix(line.split(';').next().unwrap_or_default().trim(), 16)
            .with_context(|| format!("{line:?} is no size of a chunk"))?;
        bytes = &bytes[end + 2..];
        if size == 0 {
            return Ok(body);
        }
        if bytes.len() < size + 2 {
            bail!("the answer breaks off");
        }
        body.extend_from_slice(&bytes[..size]);
        bytes = &bytes[size + 2..];
    }
}

//! The list of all targets, one file for each family of decoders.
//!
//! To add one: write its function and its seeds into the file of its family, and name it in that file's list. The seeds
//! are valid inputs, as short as possible. A target asserts more than survival where it can: a decoded value that is
//! encoded again decodes to the same.

mod answers;
mod api;
mod certificates;
mod configuration;
mod edge;
mod images;
mod joining;
mod kernel;
mod node;
mod objects;
mod patches;
mod plugins;
mod requests;
mod stored;
mod streams;
mod values;

use std::cell::OnceCell;
use std::future::Future;

use serde_json::Value;
use tokio::runtime::Runtime;

use crate::Target;

const FAMILIES: &[&[Target]] = &[
    values::TARGETS,
    patches::TARGETS,
    api::TARGETS,
    requests::TARGETS,
    answers::TARGETS,
    configuration::TARGETS,
    certificates::TARGETS,
    stored::TARGETS,
    images::TARGETS,
    streams::TARGETS,
    kernel::TARGETS,
    node::TARGETS,
    plugins::TARGETS,
    joining::TARGETS,
    objects::TARGETS,
    edge::TARGETS,
];

pub fn all() -> impl Iterator<Item = &'static Target> {
    FAMILIES.iter().copied().flatten()
}

/// Returns the input as a string; `None` if it is not UTF-8.
fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}

fn json(input: &[u8]) -> Option<Value> {
    serde_json::from_slice(input).ok()
}

/// Returns the parts of an input of several: a byte that no string has separates them.
fn parts<const N: usize>(input: &[u8]) -> [&[u8]; N] {
    let mut parts = input.splitn(N, |byte| *byte == BETWEEN);
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

const BETWEEN: u8 = 0xff;

/// Joins several parts into one input.
fn joined(parts: &[&str]) -> Vec<u8> {
    let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
    parts.join(&BETWEEN)
}

fn texts(list: &[&str]) -> Vec<Vec<u8>> {
    list.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Runs a future on this thread, with all that it spawns.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: OnceCell<Runtime> = const { OnceCell::new() };
    }
    let make = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    RUNTIME.with(|runtime| runtime.get_or_init(make).block_on(future))
}

//! Entry points for the fuzz targets: messages of the kernel and of CNI plugins. Nothing else may use this.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Output};

use serde_json::Value;

use crate::cni::{self, chain::Attached, list::List};
use crate::links::events;
use crate::wireguard::message;

/// Reads a datagram of changes to links and routes; returns how many there are.
pub fn link_events(bytes: &[u8]) -> usize {
    events::read(bytes).len()
}

/// Reads one part of the kernel's answer about a WireGuard device.
pub fn wireguard(part: &[u8]) {
    message::read(part, &mut message::Device::default());
}

/// Reads a network configuration, and makes the input of each of its plugins.
pub fn cni_list(value: &Value) {
    let Ok(list) = List::of(value) else { return };
    for plugin in &list.plugins {
        let _ = list.of_plugin(plugin, Some(value), value);
    }
}

/// Reads the answer of a plugin that ended with `code`; returns its addresses.
pub fn cni_answer(stdout: &[u8], code: i32) -> usize {
    let status = ExitStatus::from_raw(code << 8);
    let output = Output { status, stdout: stdout.to_vec(), stderr: Vec::new() };
    let answer = cni::exec::answer("plugin", "ADD", &output);
    answer.map_or(0, |answer| cni::addresses(&answer).len())
}

/// Reads the record of an attached pod; returns it as it is written again.
pub fn cni_record(value: &Value) -> Option<Value> {
    Some(Attached::from_value(value)?.to_value())
}

/// Reads a runtime's call of our own plugin; returns how many gateways and ports it has.
pub fn cni_call(config: Value) -> Option<usize> {
    cni::plugin::read(config)
}

//! The summary API, `stats/v1alpha1`: names and units are upstream's. An unknown value is absent, never zero. Plain
//! data; nothing here measures.

use corten_meta::Value;
use jiff::Timestamp;
use serde::{Serialize, Serializer};

/// A time, written as Kubernetes writes times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Timestamp);

impl Time {
    /// Converts from nanoseconds since the epoch, the runtime's unit.
    pub fn from_nanoseconds(nanoseconds: i64) -> Time {
        Time(Timestamp::from_nanosecond(i128::from(nanoseconds)).unwrap_or(Timestamp::UNIX_EPOCH))
    }

    pub fn milliseconds(self) -> i64 {
        self.0.as_millisecond()
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&corten_meta::time::rfc3339(self.0))
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    pub node: NodeStats,
    pub pods: Vec<PodStats>,
}

impl Summary {
    /// Returns the document, without unknown values.
    pub fn to_value(&self) -> serde_json::Result<Value> {
        let mut value = serde_json::to_value(self)?;
        remove_nulls(&mut value);
        Ok(value)
    }
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStats {
    pub node_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub system_containers: Vec<ContainerStats>,
    pub start_time: Time,
    pub cpu: Option<CpuStats>,
    pub memory: Option<MemoryStats>,
    pub network: Option<NetworkStats>,
    pub fs: Option<FsStats>,
    pub runtime: Option<RuntimeStats>,
    pub rlimit: Option<RlimitStats>,
    pub swap: Option<SwapStats>,
}

#[derive(Clone, Debug, Serialize)]
pub struct RlimitStats {
    pub time: Time,
    pub maxpid: i64,
    pub curproc: i64,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeStats {
    pub image_fs: Option<FsStats>,
    pub container_fs: Option<FsStats>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStats {
    pub pod_ref: PodReference,
    pub start_time: Time,
    pub containers: Vec<ContainerStats>,
    pub cpu: Option<CpuStats>,
    pub memory: Option<MemoryStats>,
    pub network: Option<NetworkStats>,
    #[serde(skip_serializing_if = "Vec::is_empty", rename = "volume")]
    pub volumes: Vec<VolumeStats>,
    #[serde(rename = "ephemeral-storage")]
    pub ephemeral_storage: Option<FsStats>,
    #[serde(rename = "process_stats")]
    pub process_stats: Option<ProcessStats>,
    pub swap: Option<SwapStats>,
}

#[derive(Clone, Debug, Serialize)]
pub struct PodReference {
    pub name: String,
    pub namespace: String,
    pub uid: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct ProcessStats {
    pub process_count: u64,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStats {
    pub name: String,
    pub start_time: Time,
    pub cpu: Option<CpuStats>,
    pub memory: Option<MemoryStats>,
    pub rootfs: Option<FsStats>,
    pub logs: Option<FsStats>,
    pub swap: Option<SwapStats>,
    /// The id for `/metrics/cadvisor`; not part of the summary.
    #[serde(skip)]
    pub id: String,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuStats {
    pub time: Time,
    pub usage_nano_cores: Option<u64>,
    pub usage_core_nano_seconds: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryStats {
    pub time: Time,
    pub available_bytes: Option<u64>,
    pub usage_bytes: Option<u64>,
    pub working_set_bytes: Option<u64>,
    pub rss_bytes: Option<u64>,
    pub page_faults: Option<u64>,
    pub major_page_faults: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SwapStats {
    pub time: Time,
    pub swap_available_bytes: Option<u64>,
    pub swap_usage_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStats {
    pub name: String,
    pub rx_bytes: u64,
    pub rx_errors: u64,
    pub tx_bytes: u64,
    pub tx_errors: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct NetworkStats {
    pub time: Time,
    #[serde(flatten)]
    pub default: InterfaceStats,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceStats>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FsStats {
    pub time: Time,
    pub available_bytes: Option<u64>,
    pub capacity_bytes: Option<u64>,
    pub used_bytes: Option<u64>,
    pub inodes_free: Option<u64>,
    pub inodes: Option<u64>,
    pub inodes_used: Option<u64>,
    /// The used and available bytes together; not part of the summary.
    #[serde(skip)]
    pub room_bytes: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStats {
    #[serde(flatten)]
    pub fs: FsStats,
    pub name: String,
    #[serde(rename = "pvcRef")]
    pub claim: Option<ClaimReference>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ClaimReference {
    pub name: String,
    pub namespace: String,
}

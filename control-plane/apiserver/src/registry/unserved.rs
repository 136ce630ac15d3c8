//! Objects of the store that no resource serves: the node ports in use, and the addresses of the API servers. They lie
//! where upstream keeps them, so that its servers see them.

use corten_api::Kind;
use corten_meta::{Status, Value};
use corten_store::{Expect, LeaseId, Op, Range, Revision};

use super::{Registry, store_status};

/// An object that is kept beside the resources.
pub struct Unserved {
    /// The declared key, or the prefix of keys.
    pub path: &'static str,
    kind: Kind,
}

impl Unserved {
    /// Returns the node ports in use.
    pub fn node_ports() -> Unserved {
        let kind = Kind::new("", "v1", "RangeAllocation", "servicenodeportallocations");
        Unserved { path: "/registry/ranges/servicenodeports", kind }
    }

    /// Returns the addresses at which API servers reach each other, one key each.
    pub fn peer_addresses() -> Unserved {
        Unserved { path: "/registry/peerserverleases", kind: Kind::new("", "v1", "Endpoints", "apiServerPeerIPInfo") }
    }

    /// Returns the addresses of the API servers, one key each.
    pub fn server_addresses() -> Unserved {
        Unserved { path: "/registry/masterleases", kind: Kind::new("", "v1", "Endpoints", "apiServerIPInfo") }
    }
}

/// A stored value, and its revision.
pub struct Found {
    pub value: Value,
    pub revision: Revision,
}

impl Registry {
    /// Reads the object at a declared key.
    pub async fn read_unserved(&self, of: &Unserved, declared: &str) -> Result<Option<Found>, Status> {
        let key = self.caches.root().key(declared);
        let (_, entry) = self.store.get(key.as_bytes()).await.map_err(store_status)?;
        let Some(entry) = entry else { return Ok(None) };
        let value = self.caches.decode_value(&of.kind, &entry).await.map_err(|e| Status::internal(e.to_string()))?;
        Ok(Some(Found { value, revision: entry.mod_revision }))
    }

    /// Reads all objects below a declared prefix. One that cannot be read is left out.
    pub async fn list_unserved(&self, of: &Unserved) -> Result<Vec<Value>, Status> {
        let prefix = self.caches.root().key(&format!("{}/", of.path));
        let all = self.store.range(Range::prefix(prefix.as_bytes())).await.map_err(store_status)?;
        let mut values = Vec::with_capacity(all.entries.len());
        for entry in &all.entries {
            values.extend(self.caches.decode_value(&of.kind, entry).await.ok());
        }
        Ok(values)
    }

    /// Returns the operation that writes an object at a declared key.
    pub fn put_unserved(
        &self,
        of: &Unserved,
        declared: &str,
        value: &Value,
        expect: Expect,
        lease: LeaseId,
    ) -> Result<Op, Status> {
        let key = self.caches.root().key(declared);
        let encoded = self.caches.format().encode(&of.kind, corten_meta::encode_object(value));
        let sealed = self.transformer.seal(&of.kind, key.as_bytes(), encoded).map_err(Status::internal)?;
        Ok(Op::Put { key: key.into(), value: sealed, lease, expect })
    }
}

//! The instance of a node: its ID, its zone, and the number of volumes that can be attached to it.

use std::time::Duration;

use corten_aws::credentials::Metadata;

/// The time in which the metadata service answers questions about devices.
const METADATA: Duration = Duration::from_secs(5);
/// The most volumes of an instance on the Xen hypervisor, which AWS recommends.
const XEN: u32 = 39;
/// The most attachments of an instance on Nitro: volumes, network interfaces and instance stores share them.
const NITRO: u32 = 28;
/// The families of types that run on Xen; all newer ones run on Nitro.
const XEN_FAMILIES: [&str; 24] = [
    "c1", "c3", "c4", "cc2", "d2", "f1", "g2", "g3", "g3s", "h1", "hs1", "i2", "i3", "m1", "m2", "m3", "m4", "p2",
    "p3", "r3", "r4", "t1", "t2", "x1",
];

/// An instance of EC2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The ID, such as `i-0abc`.
    pub id: String,
    pub zone: String,
    /// The most volumes of the driver that can be attached; 0 if it is not known.
    pub most_volumes: u32,
}

impl Instance {
    /// Asks the metadata service of the instance for everything.
    pub async fn discover(metadata: &Metadata) -> Result<Instance, String> {
        let id = text(metadata, "instance-id").await?;
        let zone = text(metadata, "placement/availability-zone").await?;
        let kind = text(metadata, "instance-type").await?;
        Ok(Instance { id, zone, most_volumes: 0 }.limited(&kind, metadata).await)
    }

    /// Adds the limit of a type of instances, by the devices that the metadata service shows.
    ///
    /// A service that does not answer, or not in time, stands for one network interface and no instance store.
    pub async fn limited(self, kind: &str, metadata: &Metadata) -> Instance {
        let answers = async {
            let interfaces = text(metadata, "network/interfaces/macs/").await.map_or(1, |list| lines(&list));
            let devices = text(metadata, "block-device-mapping/").await.unwrap_or_default();
            let stores = devices.lines().filter(|one| one.starts_with("ephemeral")).count();
            most_volumes(kind, interfaces, u32::try_from(stores).unwrap_or(u32::MAX))
        };
        let answered = tokio::time::timeout(METADATA, answers).await;
        Instance { most_volumes: answered.unwrap_or_else(|_| most_volumes(kind, 1, 0)), ..self }
    }
}

async fn text(metadata: &Metadata, path: &str) -> Result<String, String> {
    Ok(metadata.get(&format!("/latest/meta-data/{path}")).await?.trim().to_owned())
}

fn lines(list: &str) -> u32 {
    u32::try_from(list.lines().count()).unwrap_or(u32::MAX).max(1)
}

/// Returns the most volumes of the driver on an instance, beside its root volume.
///
/// Nitro instances of newer types that count volumes apart from network interfaces get fewer than they could have.
fn most_volumes(kind: &str, interfaces: u32, instance_stores: u32) -> u32 {
    let family = kind.split('.').next().unwrap_or_default();
    let is_xen = XEN_FAMILIES.contains(&family) && !kind.ends_with(".metal");
    let most = match is_xen {
        true => XEN,
        false => NITRO.saturating_sub(interfaces).saturating_sub(instance_stores),
    };
    most.saturating_sub(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_follow_from_the_type() {
        assert_eq!(most_volumes("t3.small", 1, 0), 26);
        assert_eq!(most_volumes("m5d.24xlarge", 3, 4), 20);
        assert_eq!(most_volumes("t2.micro", 2, 0), 38);
        assert_eq!(most_volumes("i3.metal", 1, 8), 18);
        assert_eq!(most_volumes("p4d.24xlarge", 60, 8), 1, "one volume can always be tried");
    }
}

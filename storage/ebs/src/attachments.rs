//! Attaches volumes to instances and detaches them.
//!
//! EC2's own attachment is the truth: it is looked for before it is made, and a device name is free if no device of the
//! instance and no attachment under way has it.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use corten_aws::Call;
use corten_storage_plugin::error::{Error, Result};

use crate::cloud::{Attachment, Cloud, DeviceName, Volume};
use crate::waiting::Wait;

/// The part of EC2's sentence about a device name that another volume has.
const NAME_IN_USE: &str = "is already in use";

/// A device name that is taken until this is dropped.
struct Reserved<'a> {
    names: &'a Mutex<BTreeSet<DeviceName>>,
    name: DeviceName,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        lock(self.names).remove(&self.name);
    }
}

fn lock(names: &Mutex<BTreeSet<DeviceName>>) -> MutexGuard<'_, BTreeSet<DeviceName>> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the names that EC2 recommends for volumes beyond the first: `/dev/xvdba` to `/dev/xvddz`.
fn device_names() -> impl Iterator<Item = String> {
    ('b'..='d').flat_map(|first| ('a'..='z').map(move |second| format!("/dev/xvd{first}{second}")))
}

/// Takes the first device name that is free.
fn reserve<'a>(
    names: &'a Mutex<BTreeSet<DeviceName>>,
    instance: &str,
    used: &BTreeSet<String>,
) -> Result<Reserved<'a>> {
    let mut reserved = lock(names);
    let name = |device: String| DeviceName { instance: instance.to_owned(), device };
    let free = device_names().filter(|device| !used.contains(device)).map(name).find(|name| !reserved.contains(name));
    let name = free.ok_or_else(|| Error::Exhausted(format!("instance {instance} has no device name left")))?;
    reserved.insert(name.clone());
    Ok(Reserved { names, name })
}

/// Returns the attachment of a volume to an instance.
fn attachment<'a>(volume: &'a Volume, instance: &str) -> Option<&'a Attachment> {
    volume.attachments.iter().find(|one| one.instance == instance && one.state != "detached")
}

impl Cloud {
    /// Attaches a volume to an instance; returns the name of its device.
    pub(crate) async fn attach(&self, id: &str, instance: &str) -> Result<String> {
        let volume = self.volume(id).await?;
        let used = self.devices(instance).await?;
        if attachment(&volume, instance).is_some() {
            return self.attached(id, instance).await;
        }
        if let Some(other) = volume.attachments.iter().find(|one| one.state != "detached") {
            return Err(Error::Precondition(format!("volume {id} is attached to instance {}", other.instance)));
        }
        self.attach_as_free(id, instance, used).await?;
        self.attached(id, instance).await
    }

    /// Attaches a volume with the first free name. A device may hold its name for some time after EC2 stopped showing it.
    async fn attach_as_free(&self, id: &str, instance: &str, mut used: BTreeSet<String>) -> Result<()> {
        loop {
            let reserved = reserve(&self.reserved, instance, &used)?;
            let device = reserved.name.device.as_str();
            let call =
                Call::new("AttachVolume").with("VolumeId", id).with("InstanceId", instance).with("Device", device);
            match self.call(&call).await {
                // An attachment whose answer was lost is shown now.
                Err(Error::Precondition(_)) if attachment(&self.volume(id).await?, instance).is_some() => return Ok(()),
                Err(Error::Invalid(sentence)) if sentence.contains(NAME_IN_USE) => {
                    used.insert(device.to_owned());
                }
                called => return called.map(drop),
            }
        }
    }

    /// Waits until a volume is attached to an instance; returns the name of its device.
    async fn attached(&self, id: &str, instance: &str) -> Result<String> {
        let mut wait = Wait::new(format!("the attachment of volume {id} to instance {instance}"));
        loop {
            let volume = self.volume(id).await?;
            match attachment(&volume, instance) {
                Some(found) if found.state == "attached" => return Ok(found.device.clone()),
                Some(found) if found.state == "busy" || found.state == "detaching" => {
                    let sentence = format!("volume {id} is being detached from instance {instance}");
                    return Err(Error::Unavailable(sentence));
                }
                _ => wait.pause().await?,
            }
        }
    }

    /// Detaches a volume from an instance, or from all if the instance is empty.
    pub(crate) async fn detach(&self, id: &str, instance: &str) -> Result<()> {
        let Some(volume) = self.find_volume(id).await? else { return Ok(()) };
        let of_call = |one: &&Attachment| (instance.is_empty() || one.instance == instance) && one.state != "detached";
        for found in volume.attachments.iter().filter(of_call) {
            if found.state != "detaching" {
                self.detach_one(id, &found.instance).await?;
            }
            self.detached(id, &found.instance).await?;
        }
        Ok(())
    }

    async fn detach_one(&self, id: &str, instance: &str) -> Result<()> {
        let call = Call::new("DetachVolume").with("VolumeId", id).with("InstanceId", instance);
        match self.call(&call).await {
            // It is detached, or is being so.
            Err(Error::NotFound(_) | Error::Precondition(_)) => Ok(()),
            called => called.map(drop),
        }
    }

    /// Waits until a volume is not attached to an instance.
    async fn detached(&self, id: &str, instance: &str) -> Result<()> {
        let mut wait = Wait::new(format!("the detachment of volume {id} from instance {instance}"));
        while self.find_volume(id).await?.is_some_and(|volume| attachment(&volume, instance).is_some()) {
            wait.pause().await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_name_is_taken_once() {
        let names = Mutex::default();
        let used = BTreeSet::from(["/dev/xvdba".to_owned()]);
        let first = reserve(&names, "i-1", &used).unwrap();
        assert_eq!(first.name.device, "/dev/xvdbb");
        assert_eq!(reserve(&names, "i-1", &used).unwrap().name.device, "/dev/xvdbc");
        assert_eq!(reserve(&names, "i-2", &used).unwrap().name.device, "/dev/xvdbb");
        drop(first);
        assert_eq!(reserve(&names, "i-1", &used).unwrap().name.device, "/dev/xvdbb");
        let all: BTreeSet<String> = device_names().collect();
        assert_eq!(all.len(), 78);
        assert!(matches!(reserve(&names, "i-1", &all), Err(Error::Exhausted(_))));
    }
}

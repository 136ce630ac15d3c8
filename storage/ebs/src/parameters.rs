//! The parameters of StorageClasses and VolumeAttributesClasses, with the names of AWS's driver. Pure.
//!
//! Names are read without regard to case, as AWS's driver reads them. An unknown one is refused, so that a class never
//! means less than it says.

use std::collections::HashMap;

use corten_storage_plugin::error::{Error, Result};

use crate::tags;

/// A type of volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeType {
    pub name: &'static str,
    /// The I/O operations per second that can be asked for; none if the type has its own.
    iops: Option<Iops>,
    /// Whether the throughput can be asked for.
    pub has_throughput: bool,
}

/// The range of I/O operations per second of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Iops {
    least: u64,
    most: u64,
    most_per_gib: u64,
}

const TYPES: [VolumeType; 7] = [
    VolumeType {
        name: "gp3",
        iops: Some(Iops { least: 3_000, most: 80_000, most_per_gib: 500 }),
        has_throughput: true,
    },
    VolumeType { name: "gp2", iops: None, has_throughput: false },
    VolumeType { name: "io1", iops: Some(Iops { least: 100, most: 64_000, most_per_gib: 50 }), has_throughput: false },
    VolumeType {
        name: "io2",
        iops: Some(Iops { least: 100, most: 256_000, most_per_gib: 1_000 }),
        has_throughput: false,
    },
    VolumeType { name: "st1", iops: None, has_throughput: false },
    VolumeType { name: "sc1", iops: None, has_throughput: false },
    VolumeType { name: "standard", iops: None, has_throughput: false },
];

impl VolumeType {
    /// Returns the type of a name.
    pub fn parse(name: &str) -> Result<VolumeType> {
        let found = TYPES.into_iter().find(|one| one.name.eq_ignore_ascii_case(name));
        let names = TYPES.map(|one| one.name).join(", ");
        found.ok_or_else(|| Error::Invalid(format!("{name:?} is no type of volumes; there are {names}")))
    }
}

/// The wanted properties of a volume that can change while it exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Performance {
    pub kind: Option<VolumeType>,
    iops: Option<u64>,
    iops_per_gib: Option<u64>,
    /// Whether too few operations per GiB become the least that the type has.
    raises_iops: bool,
    throughput: Option<u64>,
}

impl Performance {
    /// Returns the I/O operations per second of a volume of this size; none if the type's own are wanted.
    pub fn iops(&self, kind: VolumeType, gib: u64) -> Result<Option<u64>> {
        let Some(range) = kind.iops else { return Ok(None) };
        let Some(per_gib) = self.iops_per_gib else { return Ok(self.iops) };
        let most = range.most.min(range.most_per_gib.saturating_mul(gib)).max(range.least);
        let wanted = per_gib.saturating_mul(gib).min(most);
        match wanted < range.least {
            false => Ok(Some(wanted)),
            true if self.raises_iops => Ok(Some(range.least)),
            true => Err(Error::Invalid(format!(
                "{per_gib} iopsPerGB are {wanted} for {gib} GiB, and {} has at least {}",
                kind.name, range.least
            ))),
        }
    }

    /// Returns the throughput in MiB a second; none if the type's own is wanted.
    pub fn throughput(&self, kind: VolumeType) -> Option<u64> {
        self.throughput.filter(|_| kind.has_throughput)
    }

    /// Reads one parameter; reports whether it is one.
    fn read(&mut self, key: &str, value: &str) -> Result<bool> {
        match key {
            "type" => self.kind = Some(VolumeType::parse(value)?),
            "iops" => self.iops = Some(number(key, value)?),
            "iopspergb" => self.iops_per_gib = Some(number("iopsPerGB", value)?),
            "allowautoiopspergbincrease" => self.raises_iops = boolean("allowAutoIOPSPerGBIncrease", value)?,
            "throughput" => self.throughput = Some(number(key, value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn check(self) -> Result<Performance> {
        match self.iops.is_some() && self.iops_per_gib.is_some() {
            true => Err(Error::Invalid("a class has either iops or iopsPerGB".to_owned())),
            false => Ok(self),
        }
    }
}

/// The parameters of a new volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    pub performance: Performance,
    pub encrypted: bool,
    /// The ARN of the key; the account's own if empty.
    pub kms_key: String,
}

impl Parameters {
    /// Reads the parameters of a class, and over them those of a VolumeAttributesClass.
    pub fn parse(parameters: &HashMap<String, String>, mutable: &HashMap<String, String>) -> Result<Parameters> {
        let mut parsed = Parameters::default();
        for (key, value) in parameters {
            let lower = key.to_ascii_lowercase();
            if tags::is_parameter(key) || parsed.performance.read(&lower, value)? {
                continue;
            }
            match lower.as_str() {
                "encrypted" => parsed.encrypted = boolean(key, value)?,
                "kmskeyid" => parsed.kms_key.clone_from(value),
                // The range of io2 is that of Block Express everywhere by now.
                "blockexpress" => drop(boolean(key, value)?),
                // The provisioner puts it into the volume's capability.
                "fstype" => {}
                _ => return Err(unknown(key)),
            }
        }
        // As AWS's driver does: a key is for encryption.
        parsed.encrypted |= !parsed.kms_key.is_empty();
        parsed.performance = merge(parsed.performance, mutable)?.check()?;
        Ok(parsed)
    }
}

/// Reads the parameters of a VolumeAttributesClass.
pub fn modification(mutable: &HashMap<String, String>) -> Result<Performance> {
    merge(Performance::default(), mutable)?.check()
}

fn merge(mut performance: Performance, mutable: &HashMap<String, String>) -> Result<Performance> {
    for (key, value) in mutable {
        if !tags::is_parameter(key) && !performance.read(&key.to_ascii_lowercase(), value)? {
            return Err(unknown(key));
        }
    }
    Ok(performance)
}

fn unknown(key: &str) -> Error {
    Error::Invalid(format!("the parameter {key} is not known"))
}

fn number(key: &str, value: &str) -> Result<u64> {
    let parsed: Option<u64> = value.parse().ok();
    parsed
        .filter(|number| (1..=1_000_000).contains(number))
        .ok_or_else(|| Error::Invalid(format!("the parameter {key}: {value:?} is no number above 0")))
}

fn boolean(key: &str, value: &str) -> Result<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(Error::Invalid(format!("the parameter {key}: {value:?} is neither true nor false"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(parameters: &[(&str, &str)]) -> HashMap<String, String> {
        parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn parse(parameters: &[(&str, &str)]) -> Result<Parameters> {
        Parameters::parse(&map(parameters), &HashMap::new())
    }

    #[test]
    fn parameters_are_those_of_awss_driver() {
        let parsed = parse(&[
            ("type", "gp3"),
            ("IOPS", "4000"),
            ("throughput", "250"),
            ("kmsKeyId", "arn:aws:kms:x"),
            ("csi.storage.k8s.io/pvc/name", "c"),
            ("tagSpecification_1", "a=b"),
        ])
        .unwrap();
        let gp3 = VolumeType::parse("gp3").unwrap();
        assert_eq!(parsed.performance.iops(gp3, 10).unwrap(), Some(4000));
        assert_eq!(parsed.performance.throughput(gp3), Some(250));
        assert!(parsed.encrypted && parsed.kms_key == "arn:aws:kms:x");
        let over = Parameters::parse(&map(&[("type", "gp2")]), &map(&[("type", "io2"), ("iops", "100")])).unwrap();
        assert_eq!(over.performance.kind.unwrap().name, "io2");
    }

    #[test]
    fn operations_per_gib_stay_in_the_range_of_the_type() {
        let iops = |kind: &str, per_gib: &str, raises: &str, gib: u64| {
            let pairs = [("type", kind), ("iopsPerGB", per_gib), ("allowAutoIOPSPerGBIncrease", raises)];
            let parsed = parse(&pairs).unwrap().performance;
            parsed.iops(parsed.kind.unwrap(), gib).map_err(|error| error.to_string())
        };
        assert_eq!(iops("io1", "10", "false", 20), Ok(Some(200)));
        assert_eq!(iops("io1", "100", "false", 20), Ok(Some(1_000)), "50 a GiB are the most");
        assert_eq!(iops("io1", "50", "false", 100_000), Ok(Some(64_000)));
        assert_eq!(iops("gp3", "500", "false", 1_000), Ok(Some(80_000)));
        assert_eq!(iops("io2", "2000", "false", 100), Ok(Some(100_000)), "1,000 a GiB are the most");
        assert_eq!(iops("io2", "2", "true", 20), Ok(Some(100)));
        assert_eq!(iops("gp2", "2", "true", 20), Ok(None));
        let sentence = "2 iopsPerGB are 40 for 20 GiB, and io2 has at least 100";
        assert_eq!(iops("io2", "2", "false", 20), Err(sentence.to_owned()));
    }

    #[test]
    fn wrong_parameters_are_refused_by_a_sentence() {
        let sentences: [(&[(&str, &str)], &str); 5] = [
            (&[("colour", "red")], "the parameter colour is not known"),
            (&[("type", "gp9")], "\"gp9\" is no type of volumes; there are gp3, gp2, io1, io2, st1, sc1, standard"),
            (&[("iops", "many")], "the parameter iops: \"many\" is no number above 0"),
            (&[("encrypted", "1")], "the parameter encrypted: \"1\" is neither true nor false"),
            (&[("iops", "1"), ("iopsPerGB", "1")], "a class has either iops or iopsPerGB"),
        ];
        for (parameters, sentence) in sentences {
            assert_eq!(parse(parameters).unwrap_err().to_string(), sentence);
        }
        let error = modification(&map(&[("encrypted", "true")])).unwrap_err();
        assert_eq!(error.to_string(), "the parameter encrypted is not known");
    }
}

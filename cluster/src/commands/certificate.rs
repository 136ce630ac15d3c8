//! `corten certificate list`: every certificate of this machine, with its end.

use anyhow::Result;
use corten_meta::time;
use jiff::Timestamp;

use crate::certificate_cli::Certificate;
use crate::certificates::list;
use crate::directories::Directories;
use crate::preflight;

pub fn run(command: &Certificate) -> Result<()> {
    let Certificate::List(directories) = command;
    preflight::root_for("certificate list")?;
    let directories = Directories::of(directories);
    let now = time::now();
    let mut rows = vec![["NAME", "SUBJECT", "EXPIRES", "LEFT", "USED BY", "RENEWED BY"].map(str::to_owned)];
    rows.extend(list(&directories).into_iter().map(|one| {
        let expires = one.validity.until.strftime("%Y-%m-%d %H:%M:%S").to_string();
        [one.name, one.subject, expires, left(one.validity.until, now), one.used_by, one.renewed_by]
    }));
    super::print_table(&rows);
    Ok(())
}

/// Returns the time until a certificate expires, as kubectl shows ages.
pub fn left(until: Timestamp, now: Timestamp) -> String {
    let seconds = until.duration_since(now).as_secs();
    match seconds {
        ..=0 => "expired".to_owned(),
        1..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_short() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        for (until, expected) in [(0, "expired"), (90, "90s"), (600, "10m"), (90_000, "25h"), (864_000, "10d")] {
            assert_eq!(left(at(until), at(0)), expected);
        }
    }
}

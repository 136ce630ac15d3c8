//! CronJob.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("batch", "v1", "CronJob", "cronjobs")
        .short(&["cj"])
        .category("all")
        .status()
        .generation()
        .table("Name, Schedule, Timezone, Suspend:boolean, Active:integer, Last Schedule, Age; Containers, Images, Selector")
}

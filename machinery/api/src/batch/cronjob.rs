//! CronJob.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;

use crate::cells::{age, boolean, containers, format_selector, list, name, or, since, text, time};
use crate::defaulting::default_at;
use crate::kind::{Behaviour, Kind};
use crate::rules;

struct CronJob;

pub fn kind() -> Kind {
    Kind::new("batch", "v1", "CronJob", "cronjobs")
        .short(&["cj"])
        .category("all")
        .status()
        .generation()
        .table("Name, Schedule, Timezone, Suspend:boolean, Active:integer, Last Schedule, Age; Containers, Images, Selector")
        .behaviour(CronJob)
}

impl Behaviour for CronJob {
    fn rules(&self) -> &'static str {
        ".batch.v1.CronJob"
    }

    fn default(&self, object: &mut Value) {
        default_at(object, "/spec/concurrencyPolicy", "Allow");
        default_at(object, "/spec/suspend", false);
        default_at(object, "/spec/successfulJobsHistoryLimit", 3);
        default_at(object, "/spec/failedJobsHistoryLimit", 1);
        super::job::default_job_spec(object, "/spec/jobTemplate/spec");
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        rules::validate(self.rules(), object, Some(object))
    }

    fn validate_new(&self, object: &Value) -> Vec<FieldError> {
        rules::validate(self.rules(), object, None)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        rules::validate(self.rules(), new, Some(old))
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let path = corten_meta::field::Path::root("spec").child("jobTemplate").child("spec").child("template");
        let mut out = crate::core::pod_warnings::of_names(new, old);
        out.extend(super::job::of_many_indexes(new, old, "/spec/jobTemplate/spec"));
        out.extend(crate::core::pod_warnings::of_template(new, old, "/spec/jobTemplate/spec/template", &path));
        out
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let [names, images] = containers(object, "/spec/jobTemplate/spec/template/spec");
        let last = match time(object, "/status/lastScheduleTime") {
            Some(_) => since(object, "/status/lastScheduleTime", now),
            None => "<none>".to_string(),
        };
        let suspend = if boolean(object, "/spec/suspend") { "True" } else { "False" };
        vec![
            name(object),
            text(object, "/spec/schedule").into(),
            or(text(object, "/spec/timeZone"), "<none>").into(),
            suspend.into(),
            list(object, "/status/active").len().into(),
            last.into(),
            age(object, now),
            names,
            images,
            format_selector(object.pointer("/spec/jobTemplate/spec/selector")).into(),
        ]
    }
}

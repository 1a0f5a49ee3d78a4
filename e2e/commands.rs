//! Tests of commands: their output, and the files and examples that they read.

mod backup;
mod claim;
mod doctor;
mod examples;
mod first_week;
mod full_disk;
mod gateway_logs;
mod measure;
mod metrics;
mod models;
mod old_data_directory;
mod output;
mod plan;
mod request_template;
mod selftest;
mod service;
mod simulate;
mod top;

"""Addresses under /console/lab/."""

from django.urls import path

from dashboard.lab import autopilot, runs, runs_new, sweeps, sweeps_apply, workloads, workloads_measure

urlpatterns = [
    path("", runs.first, name="lab"),
    path("workloads/", workloads.workloads, name="lab_workloads"),
    path("new-workload/", workloads.new, name="lab_workload_new"),
    path("measure-workload/", workloads_measure.measure, name="lab_workload_measure"),
    path("workloads/<str:name>/", workloads.workload, name="lab_workload"),
    path("workloads/<str:name>/edit/", workloads.edit, name="lab_workload_edit"),
    path("workloads/<str:name>/delete", workloads.delete, name="lab_workload_delete"),
    path("workloads/<str:name>/file", workloads.export, name="lab_workload_file"),
    path("runs/", runs.runs, name="lab_runs"),
    path("runs/new/", runs_new.new, name="lab_run_new"),
    path("runs/<int:run_id>/", runs.run, name="lab_run"),
    path("runs/<int:run_id>/state.json", runs.state, name="lab_run_state"),
    path("runs/<int:run_id>/stop", runs.stop, name="lab_run_stop"),
    path("runs/<int:run_id>/file/<str:kind>", runs.download, name="lab_run_file"),
    path("sweeps/", sweeps.sweeps, name="lab_sweeps"),
    path("sweeps/new/", sweeps.new, name="lab_sweep_new"),
    path("sweeps/<int:sweep_id>/", sweeps.sweep, name="lab_sweep"),
    path("sweeps/<int:sweep_id>/part/", sweeps.part, name="lab_sweep_part"),
    path("sweeps/<int:sweep_id>/stop", sweeps.stop, name="lab_sweep_stop"),
    path("sweeps/<int:sweep_id>/apply/", sweeps_apply.apply, name="lab_sweep_apply"),
    path("autopilot/", autopilot.autopilots, name="lab_autopilots"),
    path("autopilot/<str:pool>/", autopilot.autopilot, name="lab_autopilot"),
    path("autopilot/<str:pool>/<str:act>", autopilot.act, name="lab_autopilot_act"),
]

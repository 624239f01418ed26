from typing import Any

from django.db import migrations, models

import serving.telemetry.webhook_signing


def give_each_rule_its_own(apps: Any, _schema_editor: Any) -> None:
    # A default is asked for once a table, and one secret must not open the webhooks of all rules.
    for rule in apps.get_model("telemetry", "AlertRule").objects.all():
        rule.webhook_salt = serving.telemetry.webhook_signing.new_salt()
        rule.save(update_fields=["webhook_salt"])


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0002_alerts"),
    ]

    operations = [
        migrations.AddField(
            model_name="alert",
            name="why_ended",
            field=models.CharField(blank=True, default="", max_length=100),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="alertrule",
            name="webhook_salt",
            field=models.CharField(default=serving.telemetry.webhook_signing.new_salt, max_length=64),
        ),
        migrations.AddField(
            model_name="alertnotice",
            name="webhook_salt",
            field=models.CharField(blank=True, default="", max_length=64),
            preserve_default=False,
        ),
        migrations.RunPython(give_each_rule_its_own, migrations.RunPython.noop),
    ]

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tuning", "0003_pool_unconfigured_since"),
    ]

    operations = [
        migrations.AlterField(
            model_name="canary",
            name="started_at",
            field=models.DateTimeField(default=django.utils.timezone.now),
        ),
        migrations.AlterField(
            model_name="guardrail",
            name="state",
            field=models.CharField(
                choices=[
                    ("watching", "Watching"),
                    ("passed", "Passed"),
                    ("missed", "Missed"),
                    ("superseded", "Superseded"),
                    ("stuck", "Stuck"),
                    ("called_off", "Called Off"),
                ],
                default="watching",
                max_length=20,
            ),
        ),
        migrations.CreateModel(
            name="VersionEffect",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("before", models.BinaryField(null=True)),
                ("after", models.BinaryField(null=True)),
                ("kept_at", models.DateTimeField(auto_now_add=True)),
                (
                    "version",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="effect",
                        to="tuning.tunablesversion",
                    ),
                ),
            ],
        ),
    ]

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tuning", "0002_guardrails_and_canaries"),
    ]

    operations = [
        migrations.AddField(
            model_name="pool",
            name="unconfigured_since",
            field=models.DateTimeField(null=True),
        ),
    ]

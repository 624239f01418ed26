from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("admission", "0004_audit_moved"),
    ]

    operations = [
        migrations.AddField(
            model_name="tenant",
            name="keeps_text",
            field=models.BooleanField(default=False),
        ),
    ]
